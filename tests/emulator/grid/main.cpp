// SPDX-License-Identifier: Apache-2.0
//
// The main program of an emulated module. It reads one launch from a file and writes the answer to another file.
// ../module.py starts it. Arrays lie at a fixed address, so that ../module.py can compute pointers to them.

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "grid/grid.h"

namespace {

using namespace wt::emulator;

constexpr std::uintptr_t arrays_address = 0x200000000000;

class Reader {
public:
    explicit Reader(std::FILE* file) : file_(file) { }

    void bytes(void* to, std::size_t count) { if (std::fread(to, 1, count, file_) != count) ok = false; }
    std::uint64_t number()
    {
        std::uint64_t value = 0;
        bytes(&value, sizeof(value));
        return ok ? value : 0;
    }
    std::string text()
    {
        std::string value(number(), ' ');
        bytes(&value[0], value.size());
        return value;
    }

    bool ok = true;

private:
    std::FILE* file_;
};

int answer(std::FILE* in, std::FILE* out)
{
    Reader reader(in);
    const std::string name = reader.text();
    GridLaunch launch{};
    launch.blocks = int(reader.number());
    launch.threads = int(reader.number());
    launch.cluster = int(reader.number());
    launch.sm = int(reader.number());
    launch.shared_bytes = int(reader.number());
    launch.arrays.resize(reader.number());
    for (Array& array : launch.arrays) {
        array.name = reader.text();
        array.offset = reader.number();
        array.size = reader.number();
    }
    struct alignas(64) Line {  // the largest alignment of an argument, that of a tensor map
        char bytes[64];
    };
    std::vector<std::vector<Line>> arguments(reader.number());
    for (auto& argument : arguments) {
        const std::size_t size = reader.number();
        argument.resize((size + sizeof(Line) - 1) / sizeof(Line));
        reader.bytes(argument.data(), size);
        launch.arguments.push_back(argument.data());
    }
    const std::size_t size = reader.number();
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    void* const arrays
        = mmap(reinterpret_cast<void*>(arrays_address), size + 1, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (arrays == MAP_FAILED) return 3;
    reader.bytes(arrays, size);
    if (!reader.ok) return 4;
    for (int i = 0; i < module_kernel_count; ++i)
        if (name == module_kernels[i].name) launch.call = module_kernels[i].call;
    static Grid machine(static_cast<char*>(arrays), size);
    const std::string error = launch.call ? machine.run(launch) : "no such kernel";
    const std::uint64_t length = error.size();
    std::fwrite(&length, sizeof(length), 1, out);
    std::fwrite(error.data(), 1, error.size(), out);
    std::fwrite(arrays, 1, size, out);
    return 0;
}

}  // namespace

int main(int argc, char** argv)
{
    if (argc != 3) return 2;
    std::FILE* const in = std::fopen(argv[1], "rb");
    std::FILE* const out = std::fopen(argv[2], "wb");
    if (!in || !out) return 2;
    install_signal_handlers();
    const int status = answer(in, out);
    return std::fclose(out) == 0 ? status : 2;
}
