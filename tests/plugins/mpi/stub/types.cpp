// SPDX-License-Identifier: Apache-2.0
//
// Datatypes and reductions.
#include <cstring>
#include <type_traits>

#include "commands.hpp"

#define MPI_FUNCTION __attribute__((visibility("default"))) int

namespace stub {
namespace {

template <typename T>
bool apply(uintptr_t op, T a, T b, T* result) {
  switch (op) {
    case 0x021:
      *result = static_cast<T>(a + b);
      return true;
    case 0x024:
      *result = static_cast<T>(1U * a * b);  // not as int, which would overflow
      return true;
    case 0x022:
      *result = b < a ? b : a;
      return true;
    case 0x023:
      *result = a < b ? b : a;
      return true;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (op < 0x028 || op > 0x02a) return false;
    *result = static_cast<T>(op == 0x028 ? a & b : op == 0x029 ? a | b : a ^ b);
    return true;
  } else {
    return false;
  }
}

template <typename T>
bool combine_all(uintptr_t op, void* into, const void* from, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    T a;
    T b;
    std::memcpy(&a, static_cast<std::byte*>(into) + i * sizeof(T), sizeof(T));
    std::memcpy(&b, static_cast<const std::byte*>(from) + i * sizeof(T), sizeof(T));
    if (!apply(op, a, b, &a)) return false;
    std::memcpy(static_cast<std::byte*>(into) + i * sizeof(T), &a, sizeof(T));
  }
  return true;
}

struct Type {
  uintptr_t value;
  size_t size;
  bool (*combine)(uintptr_t, void*, const void*, size_t);
};

// MPI_INT8_T ... MPI_DOUBLE. MPI_BYTE is not reduced.
constexpr Type kTypes[] = {
    {0x240, 1, combine_all<int8_t>},   {0x241, 1, combine_all<uint8_t>},  {0x247, 1, nullptr},
    {0x248, 2, combine_all<int16_t>},  {0x249, 2, combine_all<uint16_t>}, {0x250, 4, combine_all<int32_t>},
    {0x251, 4, combine_all<uint32_t>}, {0x258, 8, combine_all<int64_t>},  {0x259, 8, combine_all<uint64_t>},
    {0x210, 4, combine_all<float>},    {0x214, 8, combine_all<double>}};

const Type* find_type(Handle type) {
  for (const Type& each : kTypes) {
    if (each.value == value_of(type)) return &each;
  }
  return nullptr;
}

}  // namespace

size_t size_of(Handle type) {
  if (const Type* const found = find_type(type); found != nullptr) return found->size;
  const auto derived = world().types.find(value_of(type));
  return derived == world().types.end() ? 0 : *derived->second;
}

bool combine(Handle type, Handle op, void* into, const void* from, size_t count) {
  const Type* const found = find_type(type);
  return found != nullptr && found->combine != nullptr && found->combine(value_of(op), into, from, count);
}

bool has_operation(Handle type, Handle op) {
  const std::byte from[8] = {};
  std::byte into[8] = {};
  return combine(type, op, into, from, 1);
}

}  // namespace stub

using namespace stub;

namespace {

// Makes a type whose parts follow each other, the only ones that there are.
int derive(const char* function, int parts, const int* counts, const intptr_t* displs, const Handle* types,
           Handle* made) {
  if (const int code = enter(function); code != kSuccess) return code;
  World& w = world();
  const std::lock_guard lock(w.mutex);
  size_t bytes = 0;
  for (int i = 0; i < parts; ++i) {
    if (size_of(types[i]) == 0 || displs[i] != static_cast<intptr_t>(bytes)) return kBadType;
    bytes += static_cast<size_t>(counts[i]) * size_of(types[i]);
  }
  auto type = std::make_unique<size_t>(bytes);
  *made = type.get();
  w.types.emplace(value_of(*made), std::move(type));
  return kSuccess;
}

}  // namespace

extern "C" {

MPI_FUNCTION MPI_Type_contiguous(int count, Handle type, Handle* made) {
  const intptr_t begin = 0;
  return derive("MPI_Type_contiguous", 1, &count, &begin, &type, made);
}

MPI_FUNCTION MPI_Type_create_struct(int parts, const int* counts, const intptr_t* displs, const Handle* types,
                                    Handle* made) {
  return derive("MPI_Type_create_struct", parts, counts, displs, types, made);
}

MPI_FUNCTION MPI_Type_commit(Handle* type) {
  if (const int code = enter("MPI_Type_commit"); code != kSuccess) return code;
  World& w = world();
  const std::lock_guard lock(w.mutex);
  return size_of(*type) == 0 ? kBadType : kSuccess;
}

MPI_FUNCTION MPI_Type_free(Handle* type) {
  if (const int code = enter("MPI_Type_free"); code != kSuccess) return code;
  World& w = world();
  const std::lock_guard lock(w.mutex);
  return w.types.erase(value_of(*type)) == 0 ? kBadType : kSuccess;
}
}
