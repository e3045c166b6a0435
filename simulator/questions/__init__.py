"""The questions that are asked of the model, one file each."""
