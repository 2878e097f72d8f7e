variable "name" {
  description = "Name of the fleet: first part of every resource's name."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,23}$", var.name))
    error_message = "name=${var.name}: give 2 to 24 characters of a-z, 0-9 and -, the first a letter."
  }
}

variable "cidr" {
  description = "Addresses of the VPC. Each of three zones gets a quarter for instances; the last quarter is spare."
  type        = string
  default     = "10.64.0.0/16"

  validation {
    condition     = can(cidrhost(var.cidr, 0)) && can(cidrnetmask(var.cidr))
    error_message = "cidr=${var.cidr} is not an IPv4 range; write it as 10.64.0.0/16."
  }

  validation {
    condition     = try(cidrsubnet(var.cidr, 0, 0) == var.cidr, true)
    error_message = "cidr=${var.cidr} has bits set behind its prefix; write ${try(cidrsubnet(var.cidr, 0, 0), "")}."
  }

  validation {
    condition = try(
      tonumber(split("/", var.cidr)[1]) >= 16 && tonumber(split("/", var.cidr)[1]) <= 24, true
    )
    error_message = "cidr=${var.cidr}: a VPC holds /16 at most, and three zones need /24 at least; choose /16 to /24."
  }
}

variable "zones" {
  description = "Three availability zones. Null: the first three of the region."
  type        = list(string)
  default     = null

  validation {
    condition     = var.zones == null ? true : length(distinct(var.zones)) == 3 && length(var.zones) == 3
    error_message = "zones=${try(join(",", var.zones), "")}: name three different zones, one for each nats-server."
  }
}

variable "nat" {
  description = "Way out for the instances: none, one NAT gateway (one), or one in each zone (per_zone)."
  type        = string
  default     = "one"

  validation {
    condition     = contains(["none", "one", "per_zone"], var.nat)
    error_message = "nat=${var.nat}: choose none, one or per_zone."
  }
}

variable "interface_endpoints" {
  description = "AWS services reached inside of the VPC. Null: those that instances need, where there is no NAT gateway."
  type        = set(string)
  default     = null

  validation {
    condition = alltrue([
      for service in coalesce(var.interface_endpoints, []) : can(regex("^[a-z0-9.-]+$", service)) && service != "s3"
    ])
    error_message = "interface_endpoints: give names such as secretsmanager; s3 has its gateway endpoint already."
  }
}

variable "session_manager" {
  description = "Whether instances are to be reached by Session Manager: without a NAT gateway it has endpoints then."
  type        = bool
  default     = false
}

variable "monitoring_cidrs" {
  description = "Addresses from which Prometheus reads /metrics, at the ports 9090 to 9105 of coordinators and workers. None: nobody."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for cidr in var.monitoring_cidrs : can(cidrnetmask(cidr))])
    error_message = "monitoring_cidrs=${join(",", var.monitoring_cidrs)}: write IPv4 ranges as 10.8.0.0/16."
  }

  validation {
    condition     = alltrue([for cidr in var.monitoring_cidrs : try(tonumber(split("/", cidr)[1]) >= 8, true)])
    error_message = "monitoring_cidrs=${join(",", var.monitoring_cidrs)}: that is everyone; metrics name runs and machines, give your own networks."
  }
}

variable "traces" {
  description = "Addresses and port of a receiver of traces that instances may reach. Null: port 443 of any address alone. Its URL is the setting OTEL_EXPORTER_OTLP_ENDPOINT of coordinators and pools."
  type        = object({ cidrs = set(string), port = optional(number, 4318) })
  default     = null

  validation {
    condition     = var.traces == null ? true : alltrue([for cidr in var.traces.cidrs : can(cidrnetmask(cidr))]) && length(var.traces.cidrs) > 0
    error_message = "traces.cidrs=${try(join(",", var.traces.cidrs), "")}: name at least one IPv4 range, as 10.8.4.0/24."
  }

  validation {
    condition     = var.traces == null ? true : var.traces.port >= 1 && var.traces.port <= 65535
    error_message = "traces.port=${try(var.traces.port, "")}: give 1 to 65535."
  }
}
