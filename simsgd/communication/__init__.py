"""What workers put on the network, and its exact bytes."""
