output "group" {
  description = "Name of the auto-scaling group."
  value       = aws_autoscaling_group.this.name
}

output "role" {
  description = "Name of the instances' role."
  value       = module.role.role
}

output "gang_group_id" {
  description = "Security group of the members of a gang; null where no instances train together."
  value       = one(aws_security_group.gang[*].id)
}

output "scaling" {
  description = "What the coordinator's autoscaler knows of the pool. It counts workers, not instances."
  value = {
    name                = var.name
    stages              = local.stages
    min                 = var.min * local.workers
    max                 = var.max * local.workers
    step                = var.step * local.workers
    workers_per_machine = local.workers
    cooldown_s          = var.cooldown_s
    start_up_s          = var.start_up_s
    cost                = var.cost / local.workers
    group               = aws_autoscaling_group.this.name
  }
}
