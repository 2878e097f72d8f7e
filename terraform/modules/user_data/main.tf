# The script that an instance runs at its first start, the same for every role.

locals {
  script = templatefile("${path.module}/user_data.sh.tftpl", {
    settings = var.settings
    bucket   = var.bucket
    release  = var.release
    extra    = trimspace(var.extra)
  })
}
