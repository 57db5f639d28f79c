"""Lightning: a tiled model is a module like any other. Paths go through the loader, slides are opened in the step."""

import lightning
import torch
from slides import make_set
from torch.nn import functional as F

import tilegrad
from tilegrad.models import resnet18


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.tiled = tilegrad.tile(resnet18(classes=2, width=0.25), budget="24MiB")

    def training_step(self, batch, number):
        (path,), label = batch
        loss = F.cross_entropy(self.tiled(tilegrad.open(path, scale=1 / 255)), label)
        print(f"{path}: loss {loss.item():.6f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


torch.manual_seed(0)
loader = torch.utils.data.DataLoader(make_set("slides", size=512, count=4))
trainer = lightning.Trainer(max_epochs=1, accelerator="auto", logger=False, enable_checkpointing=False)
trainer.fit(Classifier(), loader)
