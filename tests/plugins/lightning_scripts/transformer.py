"""Lightning's transformer demo as it is, on text that Python brings along; knows no flashback."""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics

import lightning.pytorch as pl
from lightning.pytorch.demos import LightningTransformer, WikiText2

text = Path("data/wikitext-2.txt")  # where the demo looks before it downloads
text.parent.mkdir(exist_ok=True)
text.write_text("\n".join(topics[name] for name in sorted(topics))[:20_000])

pl.seed_everything(7)
trainer = pl.Trainer(max_steps=20, accelerator="cpu", enable_progress_bar=False)
model = LightningTransformer(vocab_size=WikiText2().vocab_size)
trainer.fit(model)
print("steps", trainer.global_step)
print("result", repr(sum(float(p.detach().double().sum()) for p in model.parameters())))
