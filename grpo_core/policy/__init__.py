"""From advantages to the next policy: logprobs, the objective, batches and optimiser steps."""
