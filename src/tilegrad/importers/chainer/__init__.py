"""Graph dumps of Chainer: tensors by bytes, functions with what they retain. Shapes are inferred."""

from .dump import open_file as open_file
from .graph import load_chainer as load_chainer
from .graph import sniff_chainer as sniff_chainer
