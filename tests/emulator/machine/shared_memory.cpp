// SPDX-License-Identifier: Apache-2.0

#include "machine/shared_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "machine/fault.h"

namespace wt::emulator {

namespace {

constexpr std::size_t margin = 256;  // unused bytes before, between and after the tiles

// Returns the next offset that is a multiple of alignment and not of twice the alignment.
std::size_t next_aligned(std::size_t from, std::size_t alignment)
{
    const std::size_t unit = 2 * alignment;
    return (from + unit - 1) / unit * unit + alignment;
}

}  // namespace

SharedMemory::~SharedMemory() { if (window_) munmap(window_, window_bytes_); }

void SharedMemory::reset(const std::vector<Tile>& tiles, const std::vector<const unsigned char*>& contents)
{
    tiles_ = tiles;
    std::size_t end = margin;
    for (Tile& tile : tiles_) {
        tile.offset = next_aligned(end, std::size_t(tile.alignment));
        end = tile.offset + tile.span() + margin;
    }
    bytes_.assign(end, 0);
    state_.assign(end, Byte{});
    epoch_ = 1;
    warp_times_.reset();
    if (end > window_bytes_) {
        if (window_) munmap(window_, window_bytes_);
        window_ = nullptr;
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* const memory = mmap(nullptr, end, PROT_NONE, flags, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        window_ = static_cast<unsigned char*>(memory);
        window_bytes_ = end;
    }
    for (std::size_t i = 0; i < tiles_.size(); ++i) {
        const Tile& tile = tiles_[i];
        std::memcpy(&bytes_[tile.offset], contents[i], tile.span());
        const std::size_t length = std::size_t(tile.line_length()) * tile.element_bytes;
        const std::size_t pitch = std::size_t(tile.leading_dimension) * tile.element_bytes;
        for (int line = 0; line < tile.lines(); ++line)
            for (std::size_t byte = 0; byte < length; ++byte) {
                Byte& state = state_[tile.offset + line * pitch + byte];
                state.tile = std::int8_t(i);
                state.initialised = tile.initialised;
            }
    }
}

std::string SharedMemory::describe_misuse(const void* address) const
{
    const unsigned char* const at = static_cast<const unsigned char*>(address);
    if (at < window_ || at >= window_ + window_bytes_) return "";
    return "an access to shared memory bypasses arch/memory.cuh at " + describe(address);
}

std::size_t SharedMemory::offset_of(const void* address) const
{
    return std::size_t(static_cast<const unsigned char*>(address) - window_);
}

std::string SharedMemory::describe(const void* address) const
{
    return describe_offset(static_cast<const unsigned char*>(address) - window_);
}

std::string SharedMemory::describe_offset(std::ptrdiff_t offset) const
{
    const Tile* nearest = nullptr;
    std::ptrdiff_t distance = 0;  // negative: before the tile
    for (const Tile& tile : tiles_) {
        const std::ptrdiff_t start = std::ptrdiff_t(tile.offset), end = start + std::ptrdiff_t(tile.span());
        if (offset >= start && offset < end) return describe_byte(tile, std::size_t(offset));
        const std::ptrdiff_t away = offset < start ? offset - start : offset - end + 1;
        if (!nearest || std::abs(away) < std::abs(distance)) {
            nearest = &tile;
            distance = away;
        }
    }
    if (!nearest) return "no tile";
    const std::string count = std::abs(distance) == 1 ? "1 byte " : std::to_string(std::abs(distance)) + " bytes ";
    return count + (distance < 0 ? "before the start" : "past the end") + " of " + nearest->name;
}

std::string SharedMemory::describe_byte(const Tile& tile, std::size_t offset) const
{
    const std::size_t byte = offset - tile.offset;
    const int element = int(byte / tile.element_bytes);
    const int line = element / tile.leading_dimension, position = element % tile.leading_dimension;
    const std::string name(1, tile.name);
    if (position >= tile.line_length()) {
        const std::string after = (tile.row_major ? "row " : "column ") + std::to_string(line);
        return "the gap after " + after + " of " + name + ", byte " + std::to_string(byte);
    }
    const int row = tile.row_major ? line : position, column = tile.row_major ? position : line;
    return name + " row " + std::to_string(row) + ", column " + std::to_string(column) + ", byte "
         + std::to_string(byte);
}

int SharedMemory::check_bounds(const Access& access, std::ptrdiff_t offset) const
{
    const auto tile_at = [&](std::ptrdiff_t at) {
        return at >= 0 && at < std::ptrdiff_t(state_.size()) ? state_[std::size_t(at)].tile : -1;
    };
    const int tile = tile_at(offset);
    for (std::ptrdiff_t at = offset; at < offset + access.bytes; ++at) {
        if (tile_at(at) == tile && tile >= 0) continue;
        const std::string start = at == offset ? "" : ", which starts at " + describe_offset(offset);
        throw Fault{access.text() + " out of tile at " + describe_offset(at) + start};
    }
    if (offset % access.bytes != 0) throw Fault{access.text() + " misaligned at " + describe_offset(offset)};
    return tile;
}

void SharedMemory::report_race(const Access& access, int other, std::size_t offset, const char* verb) const
{
    const std::string who = Accessors::is_thread(other) ? name_of_thread(other) : "several threads";
    throw Fault{access.text() + " races at " + describe_offset(std::ptrdiff_t(offset)) + " with " + who + ", which "
                + verb + " it since the last barrier"};
}

bool SharedMemory::races(std::uint32_t epoch, int other, std::uint32_t warp_time, int thread) const
{
    return epoch == epoch_ && other != thread && !warp_times_.is_past(other, warp_time, thread);
}

int SharedMemory::read(const Access& access, const void* address, void* to)
{
    const std::size_t offset = offset_of(address);
    const int tile = check_bounds(access, std::ptrdiff_t(offset));
    const int thread = access.thread;
    for (std::size_t at = offset; at < offset + std::size_t(access.bytes); ++at) {
        Byte& byte = state_[at];
        if (!byte.initialised)
            throw Fault{access.text() + " of unwritten memory at " + describe_offset(std::ptrdiff_t(at))};
        if (races(byte.write_epoch, byte.writer, byte.write_warp_time, thread))
            report_race(access, byte.writer, at, "wrote");
        const bool first = byte.read_epoch != epoch_ || warp_times_.is_past(byte.reader, byte.read_warp_time, thread);
        byte.reader = first ? std::int16_t(thread) : Accessors::joined(byte.reader, thread);
        byte.read_epoch = epoch_;
        byte.read_warp_time = warp_times_.now(thread);
    }
    std::memcpy(to, &bytes_[offset], std::size_t(access.bytes));
    return tile;
}

int SharedMemory::write(const Access& access, void* address, const void* from)
{
    const std::size_t offset = offset_of(address);
    const int tile = check_bounds(access, std::ptrdiff_t(offset));
    const int thread = access.thread;
    if (!tiles_[std::size_t(tile)].writable)
        throw Fault{access.text() + " to a read-only tile at " + describe(address)};
    for (std::size_t at = offset; at < offset + std::size_t(access.bytes); ++at) {
        Byte& byte = state_[at];
        if (races(byte.write_epoch, byte.writer, byte.write_warp_time, thread))
            report_race(access, byte.writer, at, "wrote");
        if (races(byte.read_epoch, byte.reader, byte.read_warp_time, thread))
            report_race(access, byte.reader, at, "read");
        byte.initialised = byte.written = true;
        byte.writer = std::int16_t(thread);
        byte.write_epoch = epoch_;
        byte.write_warp_time = warp_times_.now(thread);
    }
    std::memcpy(&bytes_[offset], from, std::size_t(access.bytes));
    return tile;
}

void SharedMemory::require_all_written() const
{
    for (std::size_t at = 0; at < state_.size(); ++at)
        if (state_[at].tile >= 0 && tiles_[std::size_t(state_[at].tile)].writable && !state_[at].written)
            throw Fault{"no thread wrote " + describe_offset(std::ptrdiff_t(at))};
}

}  // namespace wt::emulator
