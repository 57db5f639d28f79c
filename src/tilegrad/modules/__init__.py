"""What a user holds: tiled modules, replays and verifications, and how a call of one is planned and run."""
