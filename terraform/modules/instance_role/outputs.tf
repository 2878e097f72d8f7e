output "profile" {
  description = "Name of the instance profile. Its users are made after the rights and the secret, and destroyed before them."
  value       = aws_iam_instance_profile.this.name
  depends_on  = [aws_iam_role_policy.this, aws_secretsmanager_secret_version.this]
}

output "role" {
  description = "Name of the role."
  value       = aws_iam_role.this.name
}

output "policy" {
  description = "The role's policy, as JSON."
  value       = aws_iam_role_policy.this.policy
}

output "secret_id" {
  description = "The secret's ARN."
  value       = aws_secretsmanager_secret.this.arn
}
