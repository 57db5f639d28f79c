"""The shapes of a dump's tensors: first how many dimensions each has, then their sizes (`chainer_shapes.py`)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from ...errors import FormatError
from .dump import ChainerDump, ChainerFunction
from .ops import Known
from .shapes import Contradiction, Product, Shape, Sizes
from .trials import Trials

ITEM_BYTES = 4  # float32, and int32 for labels

Knowns = Mapping[int, Known]  # by the line of a function


def infer_shapes(
    dump: ChainerDump, order: Sequence[ChainerFunction], known: Knowns
) -> tuple[dict[int, Shape], set[int]]:
    """Shapes by tensor, and the lines of the functions that they suit. What is not there cannot be told; what is there
    has exactly the tensor's bytes."""
    functions = [f for f in order if f.line in known]
    ranks = _Ranks(dump, functions, known).run()
    functions = [f for f in functions if _suits(f, known[f.line], ranks)]
    for id in dict.fromkeys(id for f in functions for id in (*f.inputs, *f.outputs)):
        if dump.tensors[id].bytes % ITEM_BYTES:
            raise dump.tensor_error(id, f"has {dump.tensors[id].bytes} bytes: no whole number of float32")
    try:
        return _solve(dump, functions, known, ranks), {f.line for f in functions}
    except Contradiction as found:
        id = found.tensor
        raise dump.tensor_error(id, f"of {dump.tensors[id].bytes} bytes has no possible shape: {found.why}") from None


class _Ranks:
    """Passes the number of dimensions from tensor to tensor, through the functions between them."""

    def __init__(self, dump: ChainerDump, functions: Sequence[ChainerFunction], known: Knowns):
        self.dump, self.functions, self.known = dump, functions, known
        self.ranks: dict[int, int] = {}
        self.because: dict[int, int] = {}  # tensor: line of the function that said so
        self.users: defaultdict[int, list[ChainerFunction]] = defaultdict(list)
        for f in functions:
            for id in (*f.inputs, *f.outputs):
                self.users[id].append(f)

    def run(self) -> dict[int, int]:
        queue = deque(self.functions)
        while queue:
            for id in self._apply(queue.popleft()):
                queue.extend(self.users[id])
        for f in self.functions:
            if (rank := self.ranks.get(f.inputs[0])) is not None and rank < (least := self.known[f.line].least(f)):
                raise f.error(f"it needs {least} dimensions, but tensor {f.inputs[0]} has {rank}")
        return self.ranks

    def _apply(self, f: ChainerFunction) -> list[int]:
        """Tensors of which the rank has become known."""
        wanted = list(zip((*f.inputs, *f.outputs), self.known[f.line].ranks(f), strict=True))
        free = next((self.ranks[id] - r.n for id, r in wanted if r.free and id in self.ranks), None)
        found = []
        for id, rank in wanted:
            if rank.free and free is None:
                continue
            n = rank.n + (free or 0 if rank.free else 0)
            if self.ranks.setdefault(id, n) != n or n < 0:
                raise self._error(f, id, n)
            if id not in self.because:
                self.because[id] = f.line
                found.append(id)
        return found

    def _error(self, f: ChainerFunction, id: int, rank: int) -> FormatError:
        other = self.because.get(id, f.line)
        what = (
            f"has {self.ranks[id]} dimensions by the function at line {other}, but {rank} by {f.label} at line {f.line}"
        )
        return self.dump.tensor_error(id, what)


def _suits(f: ChainerFunction, known: Known, ranks: Mapping[int, int]) -> bool:
    """A tensor of unknown rank counts as flat: does the function work on it?"""
    wanted = list(zip((*f.inputs, *f.outputs), known.ranks(f), strict=True))
    free = ranks.get(f.inputs[0], 1)
    return free >= known.least(f) and all(ranks.get(id, 1) == r.n + (free if r.free else 0) for id, r in wanted)


def _solve(
    dump: ChainerDump, functions: Sequence[ChainerFunction], known: Knowns, ranks: Mapping[int, int]
) -> dict[int, Shape]:
    """The tensors of which every dimension is known."""
    sizes = Sizes()
    products: dict[int, Product] = {}
    for id in dict.fromkeys(id for f in functions for id in (*f.inputs, *f.outputs)):
        dims = tuple(sizes.new() for _ in range(ranks.get(id, 1)))
        products[id] = Product(dims, dump.tensors[id].bytes // ITEM_BYTES, id)
        sizes.post(products[id])
    data: dict[int, Product] = {}
    kernels: dict[int, Product] = {}
    for f in functions:
        known[f.line].relate(f, [products[id].dims for id in (*f.inputs, *f.outputs)], sizes)
        data |= {id: products[id] for id in (f.inputs[0], *f.outputs) if len(products[id].dims) >= 2}
        kernels |= {f.inputs[1]: products[f.inputs[1]]} if known[f.line].weighted else {}
    Trials(sizes, tuple(data.values()), tuple(kernels.values())).solve()
    shapes = {id: tuple(map(sizes.get, product.dims)) for id, product in products.items()}
    return {id: shape for id, shape in shapes.items() if None not in shape}  # type: ignore[misc]
