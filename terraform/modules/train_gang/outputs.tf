output "group" {
  description = "Name of the auto-scaling group."
  value       = module.pool.group
}

output "role" {
  description = "Name of the members' role."
  value       = module.pool.role
}

output "scaling" {
  description = "What the coordinator's autoscaler knows of the gang."
  value       = module.pool.scaling
}
