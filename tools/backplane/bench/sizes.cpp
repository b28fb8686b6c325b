// SPDX-License-Identifier: Apache-2.0
#include "bench/sizes.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <system_error>

#include "common/failure.hpp"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

uint64_t bytes_of(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long number = std::strtoull(text.c_str(), &end, 10);
  const std::string unit = end;
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  const bool sound =
      !text.empty() && text.front() != '-' && errno == 0 && shift >= 0 && number > 0 && number < (1ULL << 33);
  const uint64_t bytes = sound ? static_cast<uint64_t>(number) << shift : 0;
  if (bytes == 0 || bytes % sizeof(float) != 0 || bytes > (uint64_t{1} << 34)) {
    throw Failure(kWrongUse, fmt::format("--sizes {}: expected multiples of 4 up to 16G, as in 4,64K,1M or 4:64M:16",
                                         printable(text)));
  }
  return bytes;
}

// "4:64M:16": from, to, factor; the factor may be omitted and is 2 then.
void add_sizes(const std::string& text, std::vector<uint64_t>& sizes) {
  const size_t first = text.find(':');
  if (first == std::string::npos) return sizes.push_back(bytes_of(text));
  const size_t second = text.find(':', first + 1);
  const std::string written = second == std::string::npos ? "2" : text.substr(second + 1);
  uint64_t factor = 0;
  const auto [end, error] = std::from_chars(written.data(), written.data() + written.size(), factor);
  if (error != std::errc() || end != written.data() + written.size() || factor < 2)
    throw Failure(kWrongUse, fmt::format("--sizes {}: the factor must be 2 or more", printable(text)));
  const uint64_t last = bytes_of(text.substr(first + 1, second == std::string::npos ? second : second - first - 1));
  const uint64_t least = bytes_of(text.substr(0, first));
  if (least > last) throw Failure(kWrongUse, fmt::format("--sizes {}: the range is empty", printable(text)));
  for (uint64_t size = least;; size *= factor) {
    sizes.push_back(size);
    if (size > last / factor) return;
  }
}

}  // namespace

std::vector<uint64_t> parse_sizes(const std::vector<std::string>& texts) {
  std::vector<uint64_t> sizes;
  for (const std::string& text : texts) add_sizes(text, sizes);
  return sizes;
}

}  // namespace backplane::tool
