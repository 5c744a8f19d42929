"""What the papers say, one class each: compressors, memories, algorithms."""
