// SPDX-License-Identifier: Apache-2.0
//
// The main program of a generated translation unit. It reads launches from a file, runs them one after the other, and
// writes each answer to another file at once, so that answers before a crash remain. ../emulator.py starts it.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "machine/block.h"

namespace {

using namespace wt::emulator;

struct TileRequest {
    std::int32_t rows, columns, leading_dimension, element_bytes, alignment, row_major;
};

struct Request {
    std::int32_t kernel, threads, sm, c_initialised, complete, padding;
    TileRequest tiles[3];
    unsigned char alpha[8], beta[8];
    // The bytes of A, B and C follow.
};

Tile tile_of(char name, const TileRequest& from, bool writable, bool initialised)
{
    return {name,           from.rows,           from.columns, from.leading_dimension, from.element_bytes,
            from.alignment, from.row_major != 0, writable,     initialised,            0};
}

bool answer(Block& block, std::FILE* in, std::FILE* out)
{
    Request request;
    if (std::fread(&request, sizeof(request), 1, in) != 1) return false;
    const std::vector<Tile> tiles = {
        tile_of('A', request.tiles[0], false, true),
        tile_of('B', request.tiles[1], false, true),
        tile_of('C', request.tiles[2], true, request.c_initialised != 0),
    };
    std::vector<std::vector<unsigned char>> contents;
    std::vector<const unsigned char*> pointers;
    for (const Tile& tile : tiles) {
        contents.emplace_back(tile.span());
        if (std::fread(contents.back().data(), 1, tile.span(), in) != tile.span()) return false;
    }
    for (const auto& content : contents) pointers.push_back(content.data());
    std::string error = "no such kernel";
    if (request.kernel >= 0 && request.kernel < kernel_count) {
        block.memory.reset(tiles, pointers);
        error = block.run({kernels[request.kernel], request.threads, request.sm, request.alpha, request.beta,
                           tiles[2].element_bytes, request.complete != 0});
    }
    const std::int32_t length = std::int32_t(error.size());
    std::fwrite(&length, sizeof(length), 1, out);
    std::fwrite(error.data(), 1, error.size(), out);
    std::fwrite(block.memory.bytes(2), 1, tiles[2].span(), out);
    for (const Count& count : block.wavefronts.counts()) {
        const std::uint64_t numbers[3] = {count.instructions, count.wavefronts, count.ideal};
        std::fwrite(numbers, sizeof(numbers), 1, out);
    }
    std::fflush(out);
    return true;
}

}  // namespace

int main(int argc, char** argv)
{
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s REQUESTS ANSWERS\n", argv[0]);
        return 2;
    }
    std::FILE* const in = std::fopen(argv[1], "rb");
    std::FILE* const out = std::fopen(argv[2], "wb");
    if (!in || !out) {
        std::perror("cannot open the files");
        return 2;
    }
    static Block block;
    install_signal_handlers();
    while (answer(block, in, out)) {
    }
    return std::fclose(out) == 0 ? 0 : 2;
}
