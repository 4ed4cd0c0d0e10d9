"""Policy-gradient and supervised updates on a sharded mesh."""
