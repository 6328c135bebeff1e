"""One meaning, several speeds: tensors -> the sums of a step -> its 128 metrics.

`reference` is the definition (numpy, float64). `flat` (torch + numpy), `fused` (numba) and `device`
(torch on any device, asynchronous) are fast forms of it; `sketcher` chooses and drives them.
Nothing is imported here, so that reading an index needs no torch.
"""
