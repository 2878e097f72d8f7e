variable "fleet" {
  description = "What all instances of a fleet share: its name, its image, outputs of network and artifacts, folder of `millrace init-auth`."
  type = object({
    name     = string
    auth     = string
    image_id = string
    network = object({
      region          = string
      vpc_id          = string
      subnet_ids      = list(string)
      member_group_id = string
    })
    artifacts = object({
      arn         = string
      bucket      = string
      prefix      = string
      location    = string
      release     = string
      kms_key_arn = optional(string)
    })
    root_device = optional(string, "/dev/sda1")
  })

  validation {
    condition     = fileexists("${var.fleet.auth}/tls/ca.pem") && fileexists("${var.fleet.auth}/nats-server.conf")
    error_message = "fleet.auth=${var.fleet.auth} is no folder of `millrace init-auth --dir`; make it first."
  }
}

variable "nats_url" {
  description = "Output `url` of the module nats."
  type        = string

  validation {
    condition     = can(regex("^tls://[^/,]+:[0-9]+(,tls://[^/,]+:[0-9]+)*$", var.nats_url))
    error_message = "nats_url=${var.nats_url}: write tls://ADDRESS:4222, several with commas between them; nobody is let in without TLS."
  }
}

variable "pools" {
  description = "Outputs `scaling` of the pools that the autoscaler steers."
  type = list(object({
    name                = string
    stages              = list(string)
    min                 = number
    max                 = number
    step                = number
    workers_per_machine = optional(number)
    cooldown_s          = number
    start_up_s          = optional(number)
    cost                = number
    group               = string
  }))

  validation {
    condition     = length(distinct(var.pools[*].name)) == length(var.pools)
    error_message = "pools=${join(",", var.pools[*].name)}: each needs a name of its own."
  }
}

variable "interval_s" {
  description = "Seconds between two looks of the autoscaler."
  type        = number
  default     = 5

  validation {
    condition     = var.interval_s >= 1 && floor(var.interval_s) == var.interval_s
    error_message = "interval_s=${var.interval_s}: give a whole number from 1."
  }
}

variable "dry_run" {
  description = "Whether the autoscaler only says what it would do."
  type        = bool
  default     = false
}

variable "replicas" {
  description = "nats-servers that keep a copy of everything. With 3, one may fail at any time."
  type        = number
  default     = 3

  validation {
    condition     = contains([1, 3], var.replicas)
    error_message = "replicas=${var.replicas}: there are three nats-servers; give 3, or 1 to try things out."
  }
}

variable "settings" {
  description = "Further lines of instance.env: variables of `millrace coordinator`, as OTEL_EXPORTER_OTLP_ENDPOINT."
  type        = map(string)
  default     = {}
}

variable "instance_type" {
  description = "Type of the two instances."
  type        = string
  default     = "m6i.large"
}

variable "session_manager" {
  description = "Whether Session Manager reaches the instances: a way to the nats-servers without a VPN."
  type        = bool
  default     = false
}
