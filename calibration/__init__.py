"""What the hardware and the models did: measuring, decoding, tracing, fitting. Knows no `simulator`; the only home of torch."""
