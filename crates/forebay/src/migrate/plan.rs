//! Decisions about a migration: pure functions.

/// Bytes of a tree beside its memory: registers, descriptors, names.
const BESIDE: u64 = 4 << 20;

/// What holds the images on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageStorage {
    /// A directory in memory.
    Memory,
    /// A directory on a disk.
    Disk,
}

/// What there is for images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Memory that is free, or could be at once.
    pub memory_bytes: u64,
    /// What may still be written to the directory in memory.
    pub in_memory_bytes: u64,
    /// What may still be written to the directory on a disk.
    pub on_disk_bytes: u64,
}

/// Where an image goes: into memory if that leaves enough of it, since the task stands still until it
/// is written and read. While both copies are there, the tree is in memory twice and its image once.
pub fn image_storage(tree_bytes: u64, room: &Room) -> Option<ImageStorage> {
    let image = tree_bytes.saturating_add(BESIDE);
    let twice = image.saturating_mul(2);
    if image <= room.in_memory_bytes && twice <= room.memory_bytes / 2 {
        return Some(ImageStorage::Memory);
    }
    (image <= room.on_disk_bytes && image <= room.memory_bytes).then_some(ImageStorage::Disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 1 << 30;

    #[test]
    fn place_when_memory_is_plenty_then_there_and_else_on_disk_or_nowhere() {
        let room = Room { memory_bytes: 16 * G, in_memory_bytes: 8 * G, on_disk_bytes: 100 * G };
        assert_eq!(image_storage(G, &room), Some(ImageStorage::Memory));
        assert_eq!(
            image_storage(5 * G, &room),
            Some(ImageStorage::Disk),
            "twice 5 GiB is more than half of 16"
        );
        assert_eq!(image_storage(20 * G, &room), None, "the copy would not fit into memory");
        let small = Room { in_memory_bytes: G / 2, ..room };
        assert_eq!(image_storage(G, &small), Some(ImageStorage::Disk));
        assert_eq!(image_storage(G, &Room { on_disk_bytes: G, ..small }), None);
        assert_eq!(image_storage(u64::MAX, &room), None);
    }
}
