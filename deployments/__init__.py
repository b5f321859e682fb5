"""What registers flows with a Prefect server: deployments, schedules, work pools, automations. No logic lives here."""
