output "id" {
  description = "The template."
  value       = aws_launch_template.this.id
}

output "version" {
  description = "Its newest version."
  value       = aws_launch_template.this.latest_version
}
