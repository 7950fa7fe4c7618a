# The container alone. Endpoint and token are in the environment: PROXMOX_VE_ENDPOINT, PROXMOX_VE_API_TOKEN.
terraform {
  required_version = ">= 1.8"
  required_providers {
    proxmox = {
      source  = "bpg/proxmox"
      version = ">= 0.111"
    }
  }
}

provider "proxmox" {}

variable "node" { type = string }
variable "vmid" { type = number }
variable "template" { type = string }
variable "address" { type = string }
variable "gateway" { type = string }
variable "public_key" { type = string }

resource "proxmox_virtual_environment_container" "hermes" {
  node_name     = var.node
  vm_id         = var.vmid
  unprivileged  = true
  start_on_boot = true
  tags          = ["agent", "ai"]

  features {
    nesting = true
  }

  operating_system {
    template_file_id = var.template
    type             = "debian"
  }

  cpu {
    cores = 2
  }

  memory {
    dedicated = 4096
    swap      = 512
  }

  disk {
    datastore_id = "local-lvm"
    size         = 20
  }

  network_interface {
    name   = "eth0"
    bridge = "vmbr0"
    # The same each time: nobody sends to the card of the container before it.
    mac_address = "BC:24:11:00:02:82"
  }

  initialization {
    hostname = "hermes-peer"

    dns {
      servers = [var.gateway]
    }

    ip_config {
      ipv4 {
        address = var.address
        gateway = var.gateway
      }
    }

    user_account {
      keys = [var.public_key]
    }
  }
}
