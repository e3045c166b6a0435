"""Other people's file formats: read theirs, write theirs."""
