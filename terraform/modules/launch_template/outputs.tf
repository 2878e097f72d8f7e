output "id" {
  description = "The template."
  value       = aws_launch_template.this.id
}

output "version" {
  description = "Its newest version."
  value       = aws_launch_template.this.latest_version
}

output "security_group_ids" {
  description = "Security groups of its instances."
  value       = var.security_group_ids
}
