// SPDX-License-Identifier: Apache-2.0
//
// The job, and its description in the terms of PMIx.
#pragma once

#include <pmix.h>
#include <pmix_server.h>

#include <cstdint>
#include <string>
#include <vector>

namespace backplane::pmix {

// Equally many ranks on each node, numbered node by node.
struct Job {
  std::string name;  // PMIx's namespace
  std::vector<std::string> hosts;
  uint32_t node = 0;  // this one
  uint32_t ranks_per_node = 0;

  uint32_t size() const { return static_cast<uint32_t>(hosts.size()) * ranks_per_node; }
  uint32_t first_rank() const { return node * ranks_per_node; }
  bool is_local(uint32_t rank) const { return rank / ranks_per_node == node; }
};

// Attributes with their values, which this owns.
class Attributes {
 public:
  Attributes() = default;
  ~Attributes();
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  void add(const char* key, const std::string& text);
  void add_regex(const char* key, const char* regex);
  void add(const char* key, uint32_t number);
  void add_short(const char* key, uint32_t number);  // 16 bits
  void add_rank(const char* key, uint32_t rank);
  void add_flag(const char* key, bool value);
  void add_array(const char* key, const Attributes& members);

  pmix_info_t* data() { return items_.data(); }
  size_t size() const { return items_.size(); }

 private:
  void load(const char* key, const void* value, pmix_data_type_t type);

  std::vector<pmix_info_t> items_;
};

// `directory` holds the ranks' temporary files. Throws std::runtime_error.
void describe(const Job& job, const std::string& directory, Attributes* attributes);

}  // namespace backplane::pmix
