// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target without a fuzzer: replay_<name> RUNS SEED... feeds it every seed (a file, or all files of a
// directory) and RUNS mutations of them. The mutations are the same on every machine and in every run. The seeds must
// reach every goal of the target (coverage.hpp). An input that crashes the target or takes more than 30 s is written to
// replay-failure.bin in the working directory.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "coverage.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;

constexpr unsigned kLimit = 30;  // seconds for one input
constexpr const char* kFailure = "replay-failure.bin";

const Bytes* current = nullptr;

// Async-signal-safe.
void save_current() {
  if (current == nullptr) return;
  const int fd = ::open(kFailure, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const bool saved = fd >= 0 && ::write(fd, current->data(), current->size()) == static_cast<ssize_t>(current->size());
  static constexpr char kSaved[] = "\nthe failing input is in replay-failure.bin\n";
  static constexpr char kLost[] = "\nthe failing input could not be written to replay-failure.bin\n";
  if (::write(2, saved ? kSaved : kLost, saved ? sizeof kSaved - 1 : sizeof kLost - 1) < 0) return;
}

extern "C" void fail_on(int signal) {
  save_current();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run(const Bytes& input) {
  current = &input;
  ::alarm(kLimit);
  LLVMFuzzerTestOneInput(input.data(), input.size());
  ::alarm(0);
  current = nullptr;
}

// A number in [0, limit). The distributions of standard libraries differ.
size_t below(Random& random, size_t limit) { return static_cast<size_t>(random() % limit); }

// A position; in half of the calls among the first bytes, where headers are.
size_t position(Random& random, const Bytes& bytes) {
  return below(random, random() % 2 == 0 ? std::min<size_t>(bytes.size(), 1536) : bytes.size());
}

void overwrite_number(Random& random, Bytes& bytes) {
  static constexpr std::array<uint64_t, 12> kNumbers = {
      0, 1, 2, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, ~uint64_t{0} >> 1, ~uint64_t{0}};
  const uint64_t number = kNumbers[below(random, kNumbers.size())];
  const size_t width = size_t{1} << below(random, 4);
  const size_t at = position(random, bytes) & ~(width - 1);
  if (at + width <= bytes.size()) std::memcpy(bytes.data() + at, &number, width);
}

void copy_block(Random& random, Bytes& bytes) {
  const size_t size = 1 + below(random, std::min<size_t>(bytes.size(), 64));
  std::memmove(bytes.data() + below(random, bytes.size() - size + 1),
               bytes.data() + below(random, bytes.size() - size + 1), size);
}

void splice(Random& random, Bytes& bytes, const std::vector<Bytes>& seeds) {
  const Bytes& other = seeds[below(random, seeds.size())];
  if (other.empty()) return;
  const size_t from = below(random, other.size());
  const auto at = static_cast<std::ptrdiff_t>(below(random, bytes.size() + 1));
  bytes.insert(bytes.begin() + at, other.begin() + static_cast<std::ptrdiff_t>(from),
               other.begin() + static_cast<std::ptrdiff_t>(from + std::min<size_t>(other.size() - from, 64)));
}

void mutate(Random& random, Bytes& bytes, const std::vector<Bytes>& seeds) {
  for (uint64_t left = 1 + random() % 4; left > 0; --left) {
    const uint64_t kind = bytes.empty() ? 5 : random() % 7;
    if (kind == 0) bytes[position(random, bytes)] ^= static_cast<uint8_t>(1U << (random() % 8));
    if (kind == 1) bytes[position(random, bytes)] = static_cast<uint8_t>(random());
    if (kind == 2) overwrite_number(random, bytes);
    if (kind == 3) copy_block(random, bytes);
    if (kind == 4 && random() % 4 == 0) bytes.resize(below(random, bytes.size()));
    if (kind == 5) splice(random, bytes, seeds);
    if (kind == 6) bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(position(random, bytes)));
  }
}

bool read_seeds(const std::string& path, std::vector<Bytes>& seeds) {
  constexpr size_t kLongest = 65536;  // larger seeds are replayed, but not mutated, which would be slow
  std::vector<std::string> files = {path};
  if (std::filesystem::is_directory(path)) {
    files.clear();
    for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
  }
  for (const std::string& file : files) {
    std::ifstream in(file, std::ios::binary);
    Bytes bytes{std::istreambuf_iterator<char>(in), {}};
    if (!in && bytes.empty()) {
      std::fprintf(stderr, "cannot read the seed %s\n", file.c_str());
      return false;
    }
    run(bytes);
    if (bytes.size() <= kLongest) seeds.push_back(std::move(bytes));
  }
  return true;
}

bool all_covered() {
  bool all = !Coverage::all().empty();
  if (!all) std::fprintf(stderr, "the target has no coverage goals\n");
  for (const Coverage* const each : Coverage::all()) {
    if (each->is_covered()) continue;
    std::fprintf(stderr, "coverage goal not reached by any seed: %s\n", each->what());
    all = false;
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t runs = 0;
  if (argc < 3 || std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), runs).ec != std::errc()) {
    std::fprintf(stderr, "usage: %s RUNS SEED...\n", argv[0]);
    return 2;
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) std::signal(signal, fail_on);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(save_current);

  std::vector<Bytes> seeds;
  for (int i = 2; i < argc; ++i) {
    if (!read_seeds(argv[i], seeds)) return 2;
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "there are no seeds of at most 64 KiB\n");
    return 2;
  }
  if (!all_covered()) return 1;
  Random random(20240607);
  Bytes input;
  for (uint64_t i = 0; i < runs; ++i) {
    input = seeds[below(random, seeds.size())];
    mutate(random, input, seeds);
    run(input);
  }
  std::printf("%zu seeds and %llu mutations: no failure\n", seeds.size(), static_cast<unsigned long long>(runs));
  return 0;
}
