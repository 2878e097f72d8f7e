output "group" {
  description = "Name of the auto-scaling group."
  value       = aws_autoscaling_group.this.name
}

output "role" {
  description = "Name of the instances' role."
  value       = module.role.role
}

output "scaling" {
  description = "What the coordinator's autoscaler knows of the pool."
  value = {
    name       = var.name
    stages     = local.stages
    min        = var.min
    max        = var.max
    step       = var.step
    cooldown_s = var.cooldown_s
    start_up_s = var.start_up_s
    cost       = var.cost
    group      = aws_autoscaling_group.this.name
  }
}
