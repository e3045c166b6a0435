"""What a pass, a draft and a round cost. Read `roofline` (one operation), `forward` (one pass), `drafting`, `round`."""
