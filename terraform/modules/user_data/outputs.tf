output "script" {
  description = "The script."
  value       = local.script

  precondition {
    condition     = length(local.script) <= 16384
    error_message = "user data has ${length(local.script)} bytes, EC2 takes 16384; shorten the scaling file or the names of stages and pools."
  }
}
