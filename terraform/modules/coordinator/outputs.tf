output "group" {
  description = "Name of the auto-scaling group."
  value       = aws_autoscaling_group.this.name
}

output "role" {
  description = "Name of the instances' role."
  value       = module.role.role
}

output "scale" {
  description = "The autoscaler's file."
  value       = local.scale
}
