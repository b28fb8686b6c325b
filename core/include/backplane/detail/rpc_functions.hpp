// SPDX-License-Identifier: Apache-2.0
//
// Registration of functions that other workers may call, and the values behind references.
#pragma once

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>

#include "backplane/detail/rpc_content.hpp"

namespace backplane::rpc {
namespace detail {

// The value behind a reference, on its owner.
template <typename T>
struct Kept {
  const std::type_info* type = &typeid(T);  // first, so that it can be read without knowing T
  T value;
};

template <typename T>
int32_t encode(void* object, bp_rpc_content* content, bp_error* err) {
  try {
    if constexpr (kIsLocal<T>) {
      return bp_error_set(err, BP_INVALID, 0, -1, "this value stays with its owner; send a reference to it instead");
    } else {
      auto packer = std::make_unique<Packer>();
      const T& value = static_cast<Kept<T>*>(object)->value;
      if (content->last_reference != 0) {
        packer->lend(value);
      } else {
        packer->add(value);  // a copy, because functions of the owner may change it while it is sent
      }
      return Packer::hand_over(std::move(packer), content);
    }
  } catch (const std::exception& e) {
    return bp_error_set(err, BP_INTERNAL, 0, -1, e.what());
  }
}

template <typename T>
bp_rpc_value keep(T value) {
  return {sizeof(bp_rpc_value), 0, new Kept<T>{&typeid(T), std::move(value)},
          [](void* object) { delete static_cast<Kept<T>*>(object); }, &encode<T>};
}

template <typename Function>
struct Signature : Signature<decltype(&Function::operator())> {};
template <typename R, typename... Parameters>
struct Signature<R (*)(Parameters...)> {
  using Result = R;
  using Arguments = std::tuple<std::decay_t<Parameters>...>;
};
template <typename C, typename R, typename... Parameters>
struct Signature<R (C::*)(Parameters...) const> : Signature<R (*)(Parameters...)> {};
template <typename C, typename R, typename... Parameters>
struct Signature<R (C::*)(Parameters...)> : Signature<R (*)(Parameters...)> {};

// A registered function and its name, for error texts.
template <typename Function>
struct Registered {
  std::string name;
  Function function;
};

// "'add' takes (int, int)"
template <typename... Arguments>
std::string parameters_of(const std::string& function, std::type_identity<std::tuple<Arguments...>>) {
  std::string types;
  ((types += (types.empty() ? "" : ", ") + TypeName<Arguments>::text()), ...);
  return "'" + function + "' takes (" + types + ")";
}

template <typename... Arguments, size_t... I>
std::tuple<Arguments...> take_all(Unpacker* from, const std::string& function,
                                  std::type_identity<std::tuple<Arguments...>> types, std::index_sequence<I...>) {
  const auto hint = [&] { return parameters_of(function, types); };
  std::tuple<Arguments...> all{from->take<Arguments>(  // braces: in this order
      [&] { return "argument " + std::to_string(I + 1) + " of '" + function + "'"; }, hint)...};
  if (!from->is_at_end()) fail(Status::kInvalid, "too many arguments were sent: " + hint());
  return all;
}

// Reports an exception with its type, as torch does: "std::out_of_range: there is no such row".
inline int32_t report(const std::exception& e, bp_error* err) noexcept {
  const auto type = demangled(typeid(e));
  char text[BP_ERROR_TEXT_SIZE + 4];  // room for one more character, so that it is cut as a whole
  std::snprintf(text, sizeof(text), "%s: %s", type ? type.get() : typeid(e).name(), e.what());
  return bp_error_set(err, BP_INTERNAL, 0, -1, text);
}

template <typename Function>
int32_t run(void* ctx, const bp_rpc_payload* arguments, bp_rpc_value* result, bp_error* err) {
  using Result = typename Signature<Function>::Result;
  try {
    Unpacker unpacker(own(bp_rpc_payload_retain(arguments)));
    using Arguments = typename Signature<Function>::Arguments;
    auto& [name, function] = *static_cast<Registered<Function>*>(ctx);
    auto given = take_all(&unpacker, name, std::type_identity<Arguments>(),
                          std::make_index_sequence<std::tuple_size_v<Arguments>>());
    if constexpr (std::is_void_v<Result>) {
      std::apply(function, std::move(given));
      *result = keep(std::monostate());
    } else {
      *result = keep<std::decay_t<Result>>(std::apply(function, std::move(given)));
    }
    return BP_OK;
  } catch (const Error& e) {
    return bp_error_set(err, static_cast<int32_t>(e.status()), e.native_code(), e.peer_rank(), e.what());
  } catch (const std::exception& e) {
    return report(e, err);
  } catch (...) {
    return bp_error_set(err, BP_INTERNAL, 0, -1, "an exception of unknown type");
  }
}

template <typename Register, typename Function>
void register_with(Register* registering, const std::string& name, Function function) {
  std::unique_ptr<Registered<Function>> kept(new Registered<Function>{name, std::move(function)});
  backplane::detail::call(registering, name.c_str(), &run<Function>, static_cast<void*>(kept.get()));
  kept.release();  // NOLINT(bugprone-unused-return-value): callable as long as the process
}

}  // namespace detail

// Makes a function callable by all workers. `name` must be unique in this process (Status::kInvalid). `function` is a
// callable with one signature, which takes its arguments by value or const reference. It runs on threads of the worker,
// several calls at a time, and may block and call other workers. An exception reaches the caller as text: an Error with
// its status, any other exception with its type, as Status::kInternal.
template <typename Function>
void register_function(const std::string& name, Function function) {
  detail::register_with(bp_rpc_register, name, std::move(function));
}

// The same for functions that take microseconds, do not block and call no other worker (Status::kInvalid if they try).
// They run on the thread that receives their calls, which saves the wake-up of another thread. The worker receives
// nothing while one runs.
template <typename Function>
void register_inline_function(const std::string& name, Function function) {
  detail::register_with(bp_rpc_register_inline, name, std::move(function));
}

// For use inside a registered function. Returns true if the caller no longer waits: it timed out, cancelled the call,
// shut down, is lost, or its connection broke. Does not block. A cancellation that overtakes its call is kept, and one
// that a broken connection may have lost is sent again (the last 256).
inline bool cancelled() { return bp_rpc_cancelled() != 0; }

}  // namespace backplane::rpc
