// SPDX-License-Identifier: Apache-2.0
//
// What workers send each other: a header, and the values behind it. Any bytes are read or refused (Status::kInvalid); a
// header that was read is written the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backplane/detail/rpc_content.hpp"
#include "error.hpp"
#include "reached.hpp"
#include "rpc/wire.hpp"

namespace {

using namespace backplane::core;

Reached read_header("a header was read");
Reached refused_header("a header was refused");
Reached read_values("values were read");
Reached refused_values("values were refused");

void require(bool truth) {
  if (!truth) std::abort();
}

// As deep as it is said to be.
struct Tree {
  std::vector<Tree> branches;
  MSGPACK_DEFINE(branches)
};

template <typename... Values>
void read(std::string_view bytes) {
  size_t offset = 0;
  try {
    (backplane::rpc::detail::unpack<Values>(bytes.data(), bytes.size(), &offset), ...);
    require(offset <= bytes.size());
    read_values.mark();
  } catch (const backplane::Error& e) {
    require(e.status() == backplane::Status::kInvalid && *e.what() != '\0');
    refused_values.mark();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  std::string_view left = all;
  try {
    const rpc::Header header = rpc::decode(&left);
    require(rpc::encode(header, 0) == all.substr(0, size - left.size()));
    read_header.mark();
  } catch (const Error& e) {
    require(e.status() == BP_INVALID && *e.what() != '\0');
    left = all;
    refused_header.mark();
  }
  read<int, std::string, std::vector<double>>(left);
  read<std::map<std::string, std::pair<int64_t, bool>>>(left);
  read<Tree>(left);
  return 0;
}
