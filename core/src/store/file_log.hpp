// SPDX-License-Identifier: Apache-2.0
//
// The file of a file store: a header, then one record per change, appended under an exclusive flock. The lock belongs
// to the open file description: it also works between two stores of one process, and the kernel releases it when a
// process dies. If a process dies during an append, the record does not match its length or checksum, and the next
// writer truncates it.
//
// The header has the offset of the first record in use. Compaction appends the whole table, sets that offset to it, and
// gives the blocks before it back to the file system (the file's size stays, its use of the disk does not). A process
// that has not read so far starts again there.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "backplane/base/descriptor.hpp"
#include "store/table.hpp"

namespace backplane::core {

// Not synchronised. All but the constructor and grown() need the lock.
class FileLog {
 public:
  // Creates the file (0600) if it is missing. BP_RESOURCE with the path and the reason if it cannot; BP_INVALID if
  // the file is not a store of this user.
  explicit FileLog(std::string path);

  // False if another open file holds the lock.
  bool try_lock();
  void unlock() noexcept;
  // Whether there are records that catch_up has not read.
  bool grown() const;
  // The number of bytes read or appended; changes when the table does.
  off_t applied() const { return offset_; }
  // Applies the records that were added since the last call.
  void catch_up(Table& table);
  // Appends a change; call catch_up first. A failed append leaves the file unchanged.
  void append_set(std::string_view key, std::string_view value);
  void append_remove(std::string_view key);
  void append_remove_prefix(std::string_view prefix);
  // Compacts the log of this table if most of it is out of date.
  void compact(const Table& table);

  const std::string& path() const { return path_; }

 private:
  enum class Change : unsigned char { kSet = 1, kRemove = 2, kRemovePrefix = 3 };

  off_t size() const;
  void check_header(off_t size);
  off_t read_begin() const;
  void write_begin(uint64_t begin);
  // False if the record at offset_ is incomplete.
  bool read_record(off_t size, Table& table);
  void apply(const std::string& body, Table& table) const;
  static std::string record_of(Change change, std::string_view key, std::string_view value);
  void append(std::string_view records);
  void write_at(off_t offset, std::string_view bytes);
  void read_at(off_t offset, char* bytes, size_t count) const;
  void truncate(off_t size);
  [[noreturn]] void fail_io(const char* what, int error) const;
  [[noreturn]] void fail_damaged() const;

  const std::string path_;
  base::Descriptor fd_;
  off_t offset_ = 0;  // all records before it are applied
  off_t begin_ = 0;   // of the records in use, when they were last read
};

}  // namespace backplane::core
