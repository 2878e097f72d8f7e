output "nats_context" {
  description = "For ~/.config/nats/context/millrace.json."
  value       = module.nats.context
}

output "objects" {
  description = "The object store, as `--objects` takes it."
  value       = module.artifacts.location
}

output "groups" {
  description = "Auto-scaling groups."
  value = merge(
    { for pool in local.pools : pool.scaling.name => pool.group },
    { coordinator = module.coordinator.group },
  )
}
