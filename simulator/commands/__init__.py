"""The verbs: one file each, of arguments and printing; what they ask is answered elsewhere."""
