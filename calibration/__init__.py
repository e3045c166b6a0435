"""What the hardware and the models did: measuring, decoding, tracing, fitting.

Knows nothing of `simulator`, and is the only home of torch.
"""
