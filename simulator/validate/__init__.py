"""Predicted against measured: `published` holds predictions beside published runs, `local` beside real runs on this machine."""
