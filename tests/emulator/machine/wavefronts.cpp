// SPDX-License-Identifier: Apache-2.0

#include "machine/wavefronts.h"

#include <algorithm>

namespace wt::emulator {

namespace {

constexpr int banks = 32, bank_bytes = 4;
constexpr int bytes_at_once = banks * bank_bytes;

int log2_of(int bytes)
{
    int result = 0;
    while (1 << result < bytes) ++result;
    return result;
}

}  // namespace

void Wavefronts::record(int role, int lane, int bytes, std::size_t offset)
{
    const int size = log2_of(bytes);
    pending_[role][size][lane].push_back(offset);
    touched_[role][size] = true;
}

void Wavefronts::match()
{
    for (int role = 0; role < role_count; ++role)
        for (int size = 0; size < size_count; ++size) {
            if (!touched_[role][size]) continue;
            touched_[role][size] = false;
            auto& lanes = pending_[role][size];
            std::size_t longest = 0;
            for (const auto& lane : lanes) longest = std::max(longest, lane.size());
            counts_[role].instructions += longest;
            for (std::size_t k = 0; k < longest; ++k) count_instruction(role, lanes, k, 1 << size);
            for (auto& lane : lanes) lane.clear();
        }
}

void Wavefronts::count_instruction(int role, const Lanes& lanes, std::size_t k, int bytes)
{
    const auto share = [&](int a, int b) {
        const bool active = k < lanes[a].size();
        return active == (k < lanes[b].size()) && (!active || lanes[a][k] == lanes[b][k]);
    };
    bool neighbours = true, next_but_one = true;
    for (int lane = 0; lane < warp_lanes; ++lane) {
        neighbours = neighbours && share(lane, lane ^ 1);
        next_but_one = next_but_one && share(lane, lane ^ 2);
    }
    int group_lanes = std::min(warp_lanes, bytes_at_once / bytes);
    if (neighbours || next_but_one) group_lanes = std::min(warp_lanes, 2 * group_lanes);
    for (int first = 0; first < warp_lanes; first += group_lanes) {
        std::array<std::size_t, warp_lanes> offsets;
        int count = 0;
        for (int lane = first; lane < first + group_lanes; ++lane)
            if (k < lanes[lane].size()) offsets[count++] = lanes[lane][k];
        count_group(role, offsets.data(), count, bytes);
    }
}

void Wavefronts::count_matrices(int role, const std::vector<std::size_t>& rows)
{
    ++counts_[role].instructions;
    for (std::size_t first = 0; first < rows.size(); first += 8) count_group(role, &rows[first], 8, 16);
}

void Wavefronts::count_group(int role, const std::size_t* offsets, int count, int bytes)
{
    if (count == 0) return;
    std::array<std::size_t, 2 * banks> words;  // the most that a group accesses
    std::size_t total = 0;
    for (int i = 0; i < count; ++i)
        for (int byte = 0; byte < bytes; byte += bank_bytes) words[total++] = (offsets[i] + byte) / bank_bytes;
    std::sort(words.begin(), words.begin() + total);
    const std::size_t distinct = std::unique(words.begin(), words.begin() + total) - words.begin();
    std::array<std::uint64_t, banks> load{};
    for (std::size_t i = 0; i < distinct; ++i) ++load[words[i] % banks];
    counts_[role].wavefronts += *std::max_element(load.begin(), load.end());
    counts_[role].ideal += std::max<std::size_t>(1, (distinct + banks - 1) / banks);
}

}  // namespace wt::emulator
