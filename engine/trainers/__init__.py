"""Settings of other trainers: conversion of designs to the arguments of Megatron-LM and the settings of torchtitan, and back."""
