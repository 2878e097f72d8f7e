variable "name" {
  description = "Name of the role, of its instance profile and of its secret."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,59}$", var.name))
    error_message = "name=${var.name}: give 2 to 60 characters of a-z, 0-9 and -, the first a letter."
  }
}

variable "duties" {
  description = "What its instances do: stages of workers, coordinator, nats. They give the rights."
  type        = set(string)

  validation {
    condition = length(setsubtract(var.duties, [
      "generate", "env_step", "reward", "train_shard", "publish_weights", "coordinator", "nats",
    ])) == 0 && length(var.duties) > 0
    error_message = "duties=${join(",", var.duties)}: choose of generate, env_step, reward, train_shard, publish_weights, coordinator, nats."
  }
}

variable "artifacts" {
  description = "Outputs of the module artifacts."
  type = object({
    arn         = string
    prefix      = string
    kms_key_arn = optional(string)
  })
}

variable "secret_files" {
  description = "File names and contents that the instances get in /etc/millrace/secrets. Written to Secrets Manager, kept nowhere else."
  type        = map(string)
  ephemeral   = true
  sensitive   = true
}

variable "secret_version" {
  description = "Number of the secret's content: another number writes it again."
  type        = number
}

variable "recovery_days" {
  description = "Days for which a removed secret can be restored; 0 removes it at once."
  type        = number
  default     = 0

  validation {
    condition     = var.recovery_days == 0 || (var.recovery_days >= 7 && var.recovery_days <= 30)
    error_message = "recovery_days=${var.recovery_days}: Secrets Manager takes 0, or 7 to 30."
  }
}

variable "statements" {
  description = "Further statements of the role's policy."
  type        = any
  default     = []
}

variable "session_manager" {
  description = "Whether people may open sessions on the instances by Session Manager, without any open port."
  type        = bool
  default     = false
}
