"""Messages, the transports that carry them, and their exact bytes."""
