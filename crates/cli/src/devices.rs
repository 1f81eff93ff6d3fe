//! `windlass devices`: the devices on which this machine can compute, and why others are not available.

use std::collections::BTreeMap;

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use serde::Serialize;
use windlass_core::device::DeviceKind;
use windlass_instruments::{card_memory, total_memory};
use windlass_page::figures;
use windlass_worker::devices::{BackendDevices, ComputeDevice, Details, Inventory, Missing, masks};

use crate::failure::Failure;
use crate::output::{print_line, table_within};
use crate::{processor, terminal};

/// List the devices of this machine
#[derive(Debug, Parser)]
struct DevicesCommand {
    /// Print them as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn command() -> Command {
    DevicesCommand::command().name("devices").about("List what this machine and this build can compute on")
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let DevicesCommand { json } = DevicesCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    let inventory = Inventory::of_this_machine();
    let listing = Listing {
        devices: inventory.devices().map(|device| Listed::new(device, &inventory)).collect(),
        missing: inventory.backends.iter().filter_map(Lacking::new).collect(),
        masks: masks(|name| std::env::var(name).ok()).into_iter().map(|mask| (mask.variable, mask.value)).collect(),
    };
    if json {
        print_line(&serde_json::to_string_pretty(&listing).map_err(Failure::internal)?);
    } else {
        print_line(listing.text(terminal::columns()).trim_end());
    }
    Ok(())
}

#[derive(Debug, Serialize)]
struct Listing {
    devices: Vec<Listed>,
    missing: Vec<Lacking>,
    /// Variables that hide devices.
    masks: BTreeMap<&'static str, String>,
}

/// An available device.
#[derive(Debug, Serialize)]
struct Listed {
    /// Backend and number.
    name: String,
    backend: &'static str,
    /// Its other name, if it is a graphics card.
    gpu: Option<String>,
    /// The description that the driver reports.
    description: Option<String>,
    pci_address: Option<String>,
    memory_bytes: Option<u64>,
    /// Whether the graphics driver computes in software, on the processor.
    is_software: bool,
}

/// A backend without devices.
#[derive(Debug, Serialize)]
struct Lacking {
    backend: &'static str,
    /// Whether this build includes the backend.
    is_built: bool,
    why: String,
}

impl Listed {
    fn new(device: &ComputeDevice, inventory: &Inventory) -> Self {
        let Details { description, pci_address, error } = device.details();
        let (description, memory_bytes) = match device.name.kind {
            DeviceKind::Cpu => (Some(processor::describe()), total_memory()),
            _ => (description.or(error), pci_address.as_deref().and_then(card_memory)),
        };
        Self {
            name: device.name.to_string(),
            backend: device.name.kind.name(),
            gpu: inventory.card_number(device).map(|number| format!("gpu:{number}")),
            description,
            pci_address,
            memory_bytes,
            is_software: device.is_software,
        }
    }
}

impl Lacking {
    fn new(backend: &BackendDevices) -> Option<Self> {
        let missing = backend.missing.as_ref()?;
        let is_built = !matches!(missing, Missing::NotBuilt { .. });
        Some(Self { backend: backend.kind.name(), is_built, why: missing.to_string() })
    }
}

impl Listing {
    fn text(&self, columns: Option<u16>) -> String {
        let mut devices = table_within(columns);
        devices.set_header(["device", "memory", "what it is"]);
        for Listed { name, gpu, description, memory_bytes, is_software, .. } in &self.devices {
            let name = gpu.as_ref().map_or(name.clone(), |gpu| format!("{name}, {gpu}"));
            let software = if *is_software { " (in software)" } else { "" };
            devices.add_row([
                name,
                memory_bytes.map_or("–".to_owned(), figures::bytes),
                figures::plain(description.as_deref().unwrap_or("–")) + software,
            ]);
        }
        let mut text = devices.trim_fmt();
        if !self.missing.is_empty() {
            let mut missing = table_within(columns);
            missing.set_header(["backend", "why it has no device here"]);
            self.missing.iter().for_each(|Lacking { backend, why, .. }| {
                missing.add_row([*backend, why]);
            });
            text += &format!("\n\n{}", missing.trim_fmt());
        }
        if !self.masks.is_empty() {
            let set: Vec<String> =
                self.masks.iter().map(|(variable, value)| figures::plain(&format!("{variable}={value}"))).collect();
            text += &format!("\n\n{} hides some devices; the rest are numbered from 0", set.join(", "));
        }
        text
    }
}
