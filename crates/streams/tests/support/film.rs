//! A film of a few lines: an MP4 file with one track of pictures, one a second, each of so many bytes.

fn build(kind: &[u8; 4], inside: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(kind);
    inside(&mut bytes);
    let length = (bytes.len() as u32).to_be_bytes();
    bytes[..4].copy_from_slice(&length);
    bytes
}

fn full(kind: &[u8; 4], numbers: &[u32]) -> Vec<u8> {
    build(kind, |out| numbers.iter().for_each(|number| out.extend(number.to_be_bytes())))
}

/// A file with one track of pictures: one a second, each of so many bytes, in chunks of one sample.
pub fn film(sizes: &[u32]) -> Vec<u8> {
    let count = sizes.len() as u32;
    let with_offsets = |first: u32| {
        let mut offsets = vec![0, count];
        let mut at = first;
        for size in sizes {
            offsets.push(at);
            at += size;
        }
        let table = build(b"stbl", |out| {
            out.extend(full(b"stsd", &[0, 0]));
            out.extend(full(b"stts", &[0, 1, count, 1000]));
            out.extend(full(b"stsc", &[0, 1, 1, 1, 1]));
            let mut all = vec![0, 0, count];
            all.extend(sizes);
            out.extend(full(b"stsz", &all));
            out.extend(full(b"stco", &offsets));
        });
        build(b"moov", |out| {
            out.extend(full(b"mvhd", &[0; 25]));
            out.extend(build(b"trak", |out| {
                out.extend(full(b"tkhd", &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
                out.extend(build(b"mdia", |out| {
                    out.extend(full(b"mdhd", &[0, 0, 0, 1000, count * 1000, 0]));
                    let video = u32::from_be_bytes(*b"vide");
                    out.extend(full(b"hdlr", &[0, 0, video, 0, 0, 0]));
                    out.extend(build(b"minf", |out| out.extend(&table)));
                }));
            }));
        })
    };
    let mut file = full(b"ftyp", &[u32::from_be_bytes(*b"isom"), 0]);
    let first = file.len() + with_offsets(0).len() + 8;
    file.extend(with_offsets(first as u32));
    let bytes: u32 = sizes.iter().sum();
    file.extend((bytes + 8).to_be_bytes());
    file.extend(b"mdat");
    file.extend((0..bytes).map(|at| (at % 251) as u8));
    file
}
