variable "settings" {
  description = "What /etc/millrace/instance.env says: names and values. No secrets: every process of the instance can read it."
  type        = map(string)

  validation {
    condition     = alltrue([for name in keys(var.settings) : can(regex("^[A-Z][A-Z0-9_]*$", name))])
    error_message = "settings: names are of A-Z, 0-9 and _; got ${join(", ", keys(var.settings))}."
  }

  validation {
    condition     = alltrue([for value in values(var.settings) : can(regex("^[A-Za-z0-9_.,:/@=+-]*$", value))])
    error_message = "settings: a value has a character that an environment file would read otherwise; give letters, digits and _ . , : / @ = + - alone: ${join(" ", [for name, value in var.settings : "${name}=${value}" if !can(regex("^[A-Za-z0-9_.,:/@=+-]*$", value))])}"
  }
}

variable "bucket" {
  description = "Bucket with the release."
  type        = string
}

variable "release" {
  description = "sha256 of the release."
  type        = string

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.release))
    error_message = "release=${var.release} is not a sha256 of 64 lower-case hex digits; `millrace release` prints one."
  }
}

variable "extra" {
  description = "Further lines of the script, before the release installs itself. They may use its functions."
  type        = string
  default     = ""
}
