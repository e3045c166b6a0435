"""What the hardware and the models did: measuring, decoding, tracing and fitting. Knows nothing of `simulator`; the only home of torch."""
