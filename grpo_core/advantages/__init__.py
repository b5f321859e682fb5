"""From rewards to advantages: how far each rollout beat what it is compared with."""
