// SPDX-License-Identifier: Apache-2.0
//
// A rank of a job: stores a value and prints that of the next rank.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "backplane/backplane.h"

namespace {

constexpr int64_t kTimeout = INT64_C(30) * 1'000'000'000;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value != nullptr) return value;
  std::fprintf(stderr, "%s is not set\n", name);
  std::exit(9);
}

void check(int32_t status, const bp_error& err) {
  if (status == BP_OK) return;
  std::fprintf(stderr, "%s\n", err.text);
  std::exit(8);
}

}  // namespace

int main() {
  bp_error err;
  bp_error_init(&err);
  bp_store* store = nullptr;
  const int rank = std::stoi(variable("RANK"));
  const int world_size = std::stoi(variable("WORLD_SIZE"));
  const auto port = static_cast<uint16_t>(std::stoi(variable("MASTER_PORT")));
  check(bp_store_connect(variable("MASTER_ADDR").c_str(), port, variable("BACKPLANE_JOB_ID").c_str(), kTimeout, &store,
                         &err),
        err);
  const std::string word = "word of " + std::to_string(rank);
  check(bp_store_set(store, std::to_string(rank).c_str(), word.data(), word.size(), kTimeout, &err), err);
  char* next = nullptr;
  uint64_t size = 0;
  check(bp_store_get(store, std::to_string((rank + 1) % world_size).c_str(), &next, &size, kTimeout, &err), err);
  std::printf("%s\n", next);
  bp_free(next);
  bp_store_release(store);
  return 0;
}
